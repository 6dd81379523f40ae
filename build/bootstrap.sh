#!/bin/sh
# Prepares what a make target needs, or says in one line what is missing.
#
#   build/bootstrap.sh venv demo    creates or updates .venv, with what the demo needs
#   build/bootstrap.sh venv dev     the same, with what the tests and the linters need
#   build/bootstrap.sh java         checks for Java 17 or newer
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "pgque-dagster: $*" >&2
    exit 1
}

find_python() {
    found=
    for name in python3.13 python3.12 python3.11 python3; do
        # A version manager may put names on the path that cannot run.
        version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        found="$found $name ($version)"
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is needed, found:${found:- none}. On Debian: apt install python3 python3-venv"
}

is_current() {
    # Everything for the tests includes what the demo needs.
    for installed in "$1" dev; do
        if [ -f ".venv/.installed-$installed" ] &&
            [ -z "$(find pyproject.toml setup.py constraints.txt -newer ".venv/.installed-$installed")" ]; then
            return
        fi
    done
    return 1
}

is_usable() {
    # The programs in a copied or moved folder point to its old path.
    [ "$(cat .venv/.location 2>/dev/null)" = "$PWD" ] && .venv/bin/python -c '' 2>/dev/null
}

# Prints a setting of pip. The environment wins over [install], and that over [global], as in pip.
pip_setting() {
    for section in :env: install global; do
        value=$(sed -n "s/^$section\.$1=['\"]\(.*\)['\"]$/\1/p" .venv/.pip-settings)
        if [ -n "$value" ]; then
            printf '%s' "$value" | sed 's/\\n/ /g'
            return
        fi
    done
}

# Exports a setting of pip as one of uv, unless the user has set it: in the environment, because an
# address may contain a password, which a command line would show.
hand_over() {
    eval "given=\${$2:-}"
    value=$(pip_setting "$1" | sed "s/  *$//; s/  */${3:- }/g")
    if [ -z "$given" ] && [ -n "$value" ]; then
        export "$2=$value"
    fi
}

can_use_uv() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
        --constraint constraints.txt uv >.venv/install.log 2>&1 &&
        .venv/bin/uv --version >/dev/null 2>&1
}

install_with_uv() {
    .venv/bin/python -m pip config list >.venv/.pip-settings 2>/dev/null || :
    hand_over index-url UV_DEFAULT_INDEX
    hand_over extra-index-url UV_INDEX
    hand_over find-links UV_FIND_LINKS ,
    hand_over constraint UV_CONSTRAINT
    hand_over trusted-host UV_INSECURE_HOST
    hand_over cert SSL_CERT_FILE
    [ -z "$(pip_setting no-index)" ] || export UV_NO_INDEX=1
    rm -f .venv/.pip-settings
    # As pip does: the best version of all indexes, not of the first that has the package.
    export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}"
    .venv/bin/uv pip install --python .venv/bin/python --no-config \
        --constraint constraints.txt --editable ".[$1]"
}

install_with_pip() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --constraint constraints.txt --editable ".[$1]"
}

# Shows the lines of an installer as one line that changes, or only its last one without a terminal.
show_progress() {
    if [ -t 2 ]; then
        while IFS= read -r line; do
            printf '\r\033[K  %.76s' "$line" >&2
        done
        printf '\r\033[K' >&2
    else
        cat >/dev/null
    fi
}

make_venv() {
    if is_usable && is_current "$1"; then
        return
    fi
    if ! is_usable; then
        python=$(find_python)
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python lacks the module venv. On Debian: apt install python3-venv"
        echo "Creating .venv with $python ..." >&2
        "$python" -m venv --clear .venv
        pwd >.venv/.location
    fi
    case $1 in
    demo) echo "Installing what the demo needs, about 100 packages and 1.3 GB in .venv; a minute or more ..." >&2 ;;
    dev) echo "Installing what the tests need, about 200 packages and 1.8 GB in .venv; a minute or more ..." >&2 ;;
    esac
    installer=install_with_pip
    if can_use_uv; then
        installer=install_with_uv
    fi
    { "$installer" "$1" 2>&1 && touch ".venv/.installed-$1"; } | tee .venv/install.log | show_progress
    if ! is_current "$1"; then
        grep -v '^ [+~-] ' .venv/install.log >&2 || :
        fail "the installation failed, as said above. Then run the same make target again"
    fi
}

check_java() {
    java=java
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
    fi
    advice="Set JAVA_HOME, or on Debian: apt install openjdk-17-jre-headless"
    command -v "$java" >/dev/null 2>&1 || fail "Spark needs Java 17 or newer, found no $java. $advice"
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1)
    major=${version%%[!0-9]*}
    [ "${major:-0}" -ge 17 ] ||
        fail "Spark needs Java 17 or newer, found ${version:-an unknown version} ($java). $advice"
}

case ${1:-} in
venv)
    # Locked, because make -j or two shells may run it at the same time.
    if command -v flock >/dev/null 2>&1 && [ -z "${PGQUE_BOOTSTRAP_LOCKED:-}" ]; then
        flock --nonblock build/bootstrap.sh true ||
            echo "Waiting until another make has installed .venv ..." >&2
        PGQUE_BOOTSTRAP_LOCKED=1 exec flock build/bootstrap.sh sh build/bootstrap.sh venv "${2:-dev}"
    fi
    make_venv "${2:-dev}"
    ;;
java) check_java ;;
*) fail "usage: build/bootstrap.sh venv [demo|dev] | java" ;;
esac
