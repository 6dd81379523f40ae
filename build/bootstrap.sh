#!/bin/sh
# Prepares what a make target needs, or says in one line what is missing.
#
#   build/bootstrap.sh venv    creates or updates .venv
#   build/bootstrap.sh java    checks for Java 17 or newer
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
    [ -f .venv/.installed ] &&
        [ -z "$(find pyproject.toml setup.py constraints.txt -newer .venv/.installed)" ]
}

is_usable() {
    # The programs in a copied or moved folder point to its old path.
    [ "$(cat .venv/.location 2>/dev/null)" = "$PWD" ] && .venv/bin/python -c '' 2>/dev/null
}

make_venv() {
    if is_usable && is_current; then
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
    echo "Installing pgque-dagster and its tools, which takes some minutes the first time ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
        --constraint constraints.txt --editable '.[dev]' ||
        fail "the installation failed; see pip's error above. Then run the same make target again"
    touch .venv/.installed
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
        PGQUE_BOOTSTRAP_LOCKED=1 exec flock build/bootstrap.sh sh build/bootstrap.sh venv
    fi
    make_venv
    ;;
java) check_java ;;
*) fail "usage: build/bootstrap.sh venv|java" ;;
esac
