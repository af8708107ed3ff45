"""``python -m tests.pictures`` draws the pictures of the README again."""

from tests.pictures import FOLDER, PICTURES, picture

for name in PICTURES:
    (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")
