"""The PySpark data source `strata`: topics as tables and streams, and back.

`options`, `plan`, `client`, `messages` and `sending` are plain Python and need no Spark;
`datasource` puts Spark's classes over them. Where `strata-placement` is installed, Spark finds the
source by itself (`pyspark_strata`):

    spark.read.format("strata").option("endpoint", "127.0.0.1:8081").option("topic", "t").load()
"""
