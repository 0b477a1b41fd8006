#!/bin/sh
# The official Node client and its driver, into build/compat/node.
. "$(dirname "$0")/common.sh"
need node "Node 20 or newer"
need npm "npm"
begin node package.json package-lock.json driver.js
cp "$source/package.json" "$source/package-lock.json" "$source/.npmrc" "$source/driver.js" "$target/"
cd "$target"
run npm ci --ignore-scripts
finish
