from lastword.testing.pytest_plugin import logs  # noqa: F401  as a user's conftest would load the plugin
