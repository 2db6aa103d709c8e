#!/bin/sh
# Chromium for the tests in a real browser. It is installed where it is missing and that is allowed;
# elsewhere those tests say that they were skipped, and under continuous integration they fail.
command -v chromium >/dev/null && exit 0
command -v chromium-browser >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "==> installing chromium for the browser tests"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null && exit 0
fi
echo "chromium is missing and cannot be installed here: the browser tests will be skipped."
