#!/bin/sh
# Makes .venv with the first Python that is new enough. Usage: make_venv.sh PYTHON
set -eu

new_enough() {
    command -v "$1" > /dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null
}

for candidate in "$1" python3.11 python3.12 python3.13 python3.14; do
    if new_enough "$candidate"; then
        python=$candidate
        break
    fi
done

if [ -z "${python:-}" ]; then
    found=$("$1" --version 2> /dev/null || true)
    cat >&2 << EOF
Icestream needs Python 3.11 or later; "$1" is: ${found:-not found}.
    Debian, Ubuntu:   apt install python3 python3-venv
    another place:    make run PYTHON=path/of/a/newer/python3
EOF
    exit 1
fi

if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    cat >&2 << EOF
$python has no venv module, which Icestream's set-up needs.
    Debian, Ubuntu:   apt install python$version-venv
    Fedora:           dnf install python3-pip
EOF
    exit 1
fi

echo "setup: creating .venv with $("$python" --version)"
"$python" -m venv --clear .venv
