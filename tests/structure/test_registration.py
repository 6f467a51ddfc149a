import keras

from tests.structure.surface import public_classes


def test_every_class_with_a_config_is_registered_under_its_own_name():
    # The name is part of the file format: loading needs no custom_objects after `import keras_tx`.
    for path, cls in public_classes().items():
        if not callable(getattr(cls, "get_config", None)):
            continue
        name = f"keras_tx>{cls.__name__}"
        assert keras.saving.get_registered_name(cls) == name, path
        assert keras.saving.get_registered_object(name) is cls, path


def test_a_class_lies_in_a_file_of_its_own():
    homes = {}
    for path, cls in public_classes().items():
        if issubclass(cls, (keras.layers.Layer, keras.Model)):
            assert homes.setdefault(cls.__module__, path) == path, (
                f"{path} and {homes[cls.__module__]} share {cls.__module__}"
            )
