# ReFrame settings for one machine without a scheduler, started with mpirun.
site_configuration = {
    "systems": [
        {
            "name": "local",
            "descr": "this machine",
            "hostnames": [".*"],
            "partitions": [
                {"name": "default", "scheduler": "local", "launcher": "mpirun", "environs": ["builtin"], "max_jobs": 1}
            ],
        }
    ],
    "environments": [{"name": "builtin", "cc": "cc", "cxx": "c++"}],
}
