#!/bin/sh
# The official remoting client of Java in one version, and its driver, into
# build/compat/remoting-VERSION.
. "$(dirname "$0")/common.sh"
need javac "a JDK 17 (openjdk-17-jdk-headless)"
need mvn "Maven (maven)"
variant=$1
begin remoting pom.xml 'src/main/java/compat/*.java'
run mvn --batch-mode --quiet -f "$source/pom.xml" dependency:copy-dependencies \
  "-Dclient.version=$variant" -DoutputDirectory="$target/lib"
run javac --release 17 -d "$target/classes" -cp "$target/lib/*" "$source"/src/main/java/compat/*.java
finish
