#!/bin/sh
# Python for Spark's workers, without the archives that Spark puts before the installed code: of the
# same code, which has to be compiled, and of Java classes. Each task would open them again.
IFS=:
for place in $PYTHONPATH; do
    [ -d "$place" ] && places=$places:$place
done
PYTHONPATH=${places#:} exec "$PGQUE_TEST_PYTHON" "$@"
