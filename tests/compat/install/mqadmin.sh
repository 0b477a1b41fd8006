#!/bin/sh
# RocketMQ's command for operators, mqadmin (the newest rocketmq-tools), into build/compat/mqadmin.
. "$(dirname "$0")/common.sh"
need javac "a JDK 17 (openjdk-17-jdk-headless)"
need mvn "Maven (maven)"
begin mqadmin pom.xml 'src/main/java/compat/*.java'
run mvn --batch-mode --quiet -f "$source/pom.xml" dependency:copy-dependencies \
  "-DoutputDirectory=$target/lib"
run javac --release 17 -d "$target/classes" -cp "$target/lib/*" "$source"/src/main/java/compat/*.java
finish
