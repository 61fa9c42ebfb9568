from tf2dist.system import optional_packages


def test_a_package_that_is_there():
    assert optional_packages.missing("json") == ""


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(optional_packages.importlib.util, "find_spec", lambda name: None)
    said = "scikit-learn is not installed (pip install 'tf2dist[trainers]')"
    assert optional_packages.missing("sklearn") == said
