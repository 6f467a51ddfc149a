from tests.contract.conftest import quick_compilation  # noqa: F401
