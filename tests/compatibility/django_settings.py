"""Settings of Django's own test runner: one database, there already; reports for JUnit.

The second database of its tests is SQLite, because a herd replicates one database.
"""

import os

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["COMPATIBILITY_HOST"],
        "PORT": os.environ["COMPATIBILITY_PORT"],
        "USER": os.environ["COMPATIBILITY_USER"],
        "PASSWORD": os.environ["COMPATIBILITY_PASSWORD"],
        "NAME": os.environ["COMPATIBILITY_DBNAME"],
        "TEST": {"NAME": os.environ["COMPATIBILITY_DBNAME"]},
    },
    "other": {"ENGINE": "django.db.backends.sqlite3"},
}
SECRET_KEY = "of no use"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "xmlrunner.extra.djangotestrunner.XMLTestRunner"
TEST_OUTPUT_DIR = os.environ["COMPATIBILITY_REPORT"]
