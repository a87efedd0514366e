"""``softaug data`` and the registry behind it."""

from __future__ import annotations

import json

import pytest

from softaug.cli import main
from softaug.errors import UserError
from softaug.media import registry
from softaug.media.catalogue import CATALOGUE


def run_json(capsys, *arguments: str):
    status = main(["data", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_registry_places(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    assert registry.data_directory() == tmp_path / "softaug-home"  # SOFTAUG_HOME overrides everything
    monkeypatch.delenv("SOFTAUG_HOME")
    assert registry.registry_path() == tmp_path / "xdg" / "softaug" / "registry.json"
    assert registry.cache_directory() == tmp_path / "xdg-cache" / "softaug"


def test_register_and_forget(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        registry.register(name, tmp_path / name)
    assert list(registry.registered()) == ["b", "a"]
    assert registry.unregister("b") == tmp_path / "b" and (tmp_path / "b").is_dir()
    with pytest.raises(UserError, match="'b'; choose one of a"):
        registry.unregister("b")
    for bad in ("procedural", "a/b", "", ".hidden"):
        with pytest.raises(UserError, match="cannot name a data set"):
            registry.register(bad, tmp_path)
    assert [path.name for path in registry.data_directory().iterdir()] == [
        "registry.json"
    ]  # no temporary rests


def test_failed_write_keeps_the_old_registry(tmp_path, monkeypatch):
    registry.register("a", tmp_path)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        registry.register("b", tmp_path)
    assert list(registry.registered()) == ["a"]
    assert [path.name for path in registry.data_directory().iterdir()] == ["registry.json"]


def test_damaged_registry_is_named(tmp_path):
    registry.registry_path().parent.mkdir(parents=True)
    registry.registry_path().write_text("{")
    with pytest.raises(UserError, match=r"registry\.json is not readable"):
        registry.registered()


def test_catalogue_is_honest():
    for dataset in CATALOGUE.values():
        assert dataset.url.startswith("http") and dataset.size > 0 and dataset.licence
        assert dataset.checksum is None or len(dataset.checksum.split(":")[1]) in (32, 64)
        assert dataset.checksum or dataset.checksum_note == "no published checksum"


def test_list_add_check_remove(tmp_path, capsys, make_image):
    make_image(tmp_path / "mine" / "a.jpg")
    make_image(tmp_path / "mine" / "b.jpg")
    assert main(["data", "add", "mine", str(tmp_path / "mine")]) == 0
    assert "2 images" in capsys.readouterr().out
    status, listing = run_json(capsys, "list")
    row = next(row for row in listing["datasets"] if row["name"] == "mine")
    assert status == 0 and row["path"] == str(tmp_path / "mine") and row["present"]
    assert {row["name"] for row in listing["datasets"]} == {*CATALOGUE, "mine"}
    status, (report,) = run_json(capsys, "check", "mine")
    assert status == 0 and report["ok"] and report["files"] == report["checked"] == 2
    (tmp_path / "mine" / "b.jpg").write_text("no image")
    status, (report,) = run_json(capsys, "check")
    assert status == 1 and not report["ok"]
    assert [item["file"] for item in report["bad"]] == [str(tmp_path / "mine" / "b.jpg")]
    assert main(["data", "list"]) == main(["data", "remove", "mine"]) == 0
    assert registry.registered() == {}


def test_check_names_missing_and_damaged_official_files(tmp_path, capsys, make_video):
    root = tmp_path / "gb"
    make_video(root / "video_easy" / "video0.mp4", frames=4)
    (root / "video_easy" / "video1.mp4").write_text("text")
    (root / "color_hard.pt").write_text("text")
    assert main(["data", "add", "dmcgb", str(root)]) == 0
    assert "2 easy and 0 hard videos" in capsys.readouterr().out
    status, (report,) = run_json(capsys, "check")
    assert status == 1
    assert (report["files"], report["checked"], report["frames_decoded"]) == (3, 3, 4)
    assert [item["file"].split("/")[-1] for item in report["bad"]] == ["video1.mp4", "color_hard.pt"]
    assert "color_easy.pt" in report["missing"] and len(report["missing"]) == 112 - 3
    assert main(["data", "check"]) == 1
    assert "109 official files are missing" in capsys.readouterr().out


def test_check_of_a_vanished_folder(tmp_path, capsys, make_image):
    folder = make_image(tmp_path / "mine" / "a.jpg").parent
    registry.register("mine", folder)
    (folder / "a.jpg").unlink()
    folder.rmdir()
    status, (report,) = run_json(capsys, "check", "mine")
    assert status == 1 and report["bad"][0]["reason"] == "the folder is gone"


def test_davis_is_registered_where_its_frames_are(tmp_path, capsys, make_image):
    make_image(tmp_path / "DAVIS" / "JPEGImages" / "480p" / "bear" / "00000.jpg")
    make_image(tmp_path / "DAVIS" / "Annotations" / "480p" / "bear" / "00000.png")
    assert main(["data", "add", "davis", str(tmp_path)]) == 0
    assert "1 videos" in capsys.readouterr().out
    assert registry.registered()["davis"] == tmp_path / "DAVIS" / "JPEGImages" / "480p"
    assert run_json(capsys, "check")[1][0]["frames_decoded"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "mine", "/no/such/folder"], "/no/such/folder is not a folder"),
        (["check", "mine"], "unknown registered data set 'mine'; there is none"),
        (["remove", "mine"], "unknown registered data set 'mine'"),
        (["download", "mine"], "unknown data set 'mine'; choose one of places365"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(["data", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error


def test_folder_without_media_is_not_registered(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("mine", "dmcgb", "places365", "davis"):
        assert main(["data", "add", name, str(tmp_path / "empty")]) == 2
    assert registry.registered() == {}


def test_official_files_pass_the_check(official_data, capsys, monkeypatch):
    monkeypatch.setattr("softaug.media.check.VIDEO_SAMPLE", 1)
    registry.register("dmcgb", official_data)
    status, (report,) = run_json(capsys, "check")
    assert status == 0 and report["ok"] and report["bad"] == []
