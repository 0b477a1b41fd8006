#!/bin/sh
# The jars of Hadoop's NameNode and DataNode, into build/parts/hdfs.
. "$(dirname "$0")/common.sh"
need java "a JDK 17 (openjdk-17-jdk-headless)"
need mvn "Maven (maven)"
begin hdfs "$here/../hdfs/pom.xml"
run mvn --batch-mode --quiet -f "$here/../hdfs/pom.xml" dependency:copy-dependencies \
  -DoutputDirectory="$target/lib"
finish
