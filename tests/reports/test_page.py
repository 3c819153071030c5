"""The report is one file that shows all of a study, is accessible, and is safe to open."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

pytest.importorskip("plotly")

from hpsearch import SearchSummary, TrialRecord, TrialState, open_study
from hpsearch.cli import main
from hpsearch.reports.commands_to_repeat import how_to_repeat
from hpsearch.reports.earlier_heading import earlier_heading
from hpsearch.reports.figure import Plot
from hpsearch.reports.page import write_report
from hpsearch.reports.plots import plots
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.advice import advice
from hpsearch.search.result.parameter_importances import Importances
from hpsearch.search.store.held_out_file import read_held_out, write_held_out
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import Replica, Span
from tests.support.html_pages import packed_json, parse_html, text_of
from tests.support.rendering import HOSTILE, NoEngine, curve, hostile_records, made_up, make_study, summary_of
from tests.support.small_search import search
from tests.support.small_trainer import points
from tests.support.stored_studies_0_8_0 import SEARCHES, STORED

PLOTS = ["progress", "curves", "history", "importances", "slices", "contour", "parallel", "timeline"]


def page_of(summary: SearchSummary, folder: Path) -> Element:
    write_report(summary, folder / "report.html")
    return parse_html((folder / "report.html").read_text(encoding="utf-8"))


def plots_of(summary: SearchSummary) -> dict[str, Plot]:
    return {each.name: each for each in plots(summary, summary.importances())}


def rows_of(page: Element, table: str) -> list[list[str]]:
    return [[text_of(cell) for cell in row] for row in page.iterfind(f".//{table}//tbody/tr")]


@pytest.fixture(scope="module")
def summary() -> SearchSummary:
    return summary_of(made_up(200))


@pytest.fixture(scope="module")
def file(summary: SearchSummary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    write_report(summary, file)
    return file


@pytest.fixture(scope="module")
def page(file: Path) -> Element:
    return parse_html(file.read_text(encoding="utf-8"))


def test_the_report_of_200_trials_is_smaller_than_3_mb(file: Path) -> None:
    assert file.stat().st_size < 3e6


def test_the_page_says_what_was_found_and_lists_every_trial_best_first(summary: SearchSummary, page: Element) -> None:
    [best] = summary.best()
    text = text_of(page.find(".//main"))
    assert f"Best eval_accuracy {best.value:.4g} Of trial {best.number} (scope last)." in text
    saved = 1 - sum(each.epochs for each in summary.records) / (9 * 200)
    assert f"{saved:.0%} was saved" in text
    assert all(each in text for each in advice(summary.study, summary.records))
    numbers = [int(row[0]) for row in rows_of(page, "table[@class='sortable']")]
    assert sorted(numbers) == list(range(200))
    assert numbers == [each.number for each in summary.best_first()]
    assert numbers[0] == best.number


def test_every_plot_has_a_place_with_a_name_and_a_description(page: Element) -> None:
    texts = {each.get("id"): text_of(each) for each in page.iter() if each.get("id")}
    places = page.findall(".//*[@role='img']")
    assert [each.get("data-plot") for each in places] == PLOTS
    for place in places:
        assert place.get("tabindex") == "0"
        assert texts[place.get("aria-labelledby")]
        assert len(texts[place.get("aria-describedby")]) > 20
    regions = [*page.iterfind(".//*[@role='group']"), *page.iter("section")]
    assert len(regions) > len(PLOTS)
    assert all(texts[each.get("aria-labelledby")] for each in regions)


def test_the_page_has_a_language_one_main_heading_and_a_link_past_the_top(page: Element) -> None:
    assert page.get("lang") == "en"
    headings = [each.tag for each in page.iter() if each.tag in ("h1", "h2", "h3")]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    assert page.find(".//a[@class='skip'][@href='#main']") is not None


def test_the_page_asks_for_nothing_from_a_network(page: Element) -> None:
    sources = [each.get(name) for each in page.iter() for name in ("src", "href") if each.get(name)]
    assert set(sources) == {"data:,", "#main"}


def test_the_page_holds_the_figures_as_json(summary: SearchSummary, page: Element) -> None:
    figures = packed_json(page, "figures")
    assert list(figures) == PLOTS
    history = {
        x: y
        for trace in figures["history"]["data"]
        if trace["mode"] == "markers"
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    assert history == {each.number: each.reports[-1].value for each in summary.records}
    drawn = sum(y is not None for trace in figures["curves"]["data"] if "lines" in trace["mode"] for y in trace["y"])
    assert drawn == sum(len(each.reports) for each in summary.records)
    for name in ("curves", "history", "slices", "timeline"):
        points = [trace for trace in figures[name]["data"] if trace.get("mode") != "lines"]
        assert {number for trace in points for number in trace["customdata"]} == set(range(200))
    assert {y for trace in figures["timeline"]["data"] for y in trace["y"]} == {1, 2}


def test_what_users_wrote_is_text_in_the_page(tmp_path: Path) -> None:
    page = page_of(summary_of(hostile_records()), tmp_path)
    assert page.find(".//img") is None
    assert [each.get("id") for each in page.iter("script")] == ["dark-colors", "trial-data", "figures", "plotly", None]
    assert HOSTILE in text_of(page.find(".//section[@aria-labelledby='failures']"))  # as it is


def test_the_title_and_the_note_are_text_in_the_page(tmp_path: Path) -> None:
    write_report(summary_of(made_up(2)), tmp_path / "report.html", title=HOSTILE, note=f"A first line.\n{HOSTILE}")
    page = parse_html((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.find(".//img") is None
    assert text_of(page.find(".//h1")) == HOSTILE
    assert text_of(page.find(".//p[@class='note']")) == f"A first line. {HOSTILE}"
    assert text_of(page.find(".//p[@class='lead']")).startswith("study digits, ")


def test_the_command_passes_the_title_and_the_note(tmp_path: Path) -> None:
    written = ["-o", str(tmp_path / "report.html"), "--title", "A title", "--note", "A note."]
    assert main(["report", str(STORED / next(iter(SEARCHES))), *written]) == 0
    page = parse_html((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [text_of(page.find(f".//{each}")) for each in ("h1", "p[@class='note']")] == ["A title", "A note."]


def test_a_report_that_is_made_again_keeps_what_was_written_above_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, file = STORED / next(iter(SEARCHES)), tmp_path / "report.html"

    def made_again(*written: str) -> tuple[list[str], str]:
        assert main(["report", str(study), "-o", str(file), *written]) == 0
        page = parse_html(file.read_text(encoding="utf-8"))
        return [
            text_of(each) for each in page.findall(".//header/*") if each.tag == "h1" or each.get("class") == "note"
        ], (capsys.readouterr().err)

    note = f'A first line.\nHe said "no" & left. {HOSTILE}'
    assert made_again("--title", "A title", "--note", note)[0][0] == "A title"
    kept, err = made_again()
    assert kept == ["A title", " ".join(note.split())]
    assert "kept the title and the note of the earlier report; --title '' --note '' removes them" in err
    assert made_again("--note", "")[0] == ["A title"]
    assert made_again("--title", "") == ([open_study(study).study.name], "")


def test_what_was_written_above_a_report_is_of_its_study_and_no_other_file_matters(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(summary_of(made_up(2)), file, title='A "title"', note="One\ntwo")
    assert earlier_heading(file, Path("out/digits")) == ('A "title"', "One\ntwo")
    assert earlier_heading(file, Path("other/digits")) == (None, None)
    (tmp_path / "link.html").symlink_to(file)
    for each in ("link.html", "missing.html", "."):
        assert earlier_heading(tmp_path / each, Path("out/digits")) == (None, None)
    file.write_bytes(b"\xff\x00<html>")
    assert earlier_heading(file, Path("out/digits")) == (None, None)


def test_the_page_has_all_of_each_trial_for_a_file_but_no_folder_of_this_machine(tmp_path: Path) -> None:
    records = made_up(4)
    records[1] = replace(records[1], values=(math.inf,), checkpoint=Path("/home/me/secret"), reason="it diverged")
    again = replace(records[0], number=4, origin=Replica(0, 1).origin)
    table = packed_json(page_of(summary_of([*records, again]), tmp_path), "trial-data")
    by_name = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert [each["number"] for each in by_name] == [0, 1, 2, 3, 4]
    assert [each["params.learning_rate"] for each in by_name[:4]] == [each.params["learning_rate"] for each in records]
    assert by_name[1]["eval_accuracy"] == "inf"
    assert by_name[1]["reason"] == "it diverged"
    assert [each["repeats"] for each in by_name] == [None] * 4 + [0]
    assert "checkpoint" not in table["columns"]


def test_a_front_has_the_means_of_repeated_trials_and_curves_count_training_runs() -> None:
    objectives = resolve_objectives(["loss", "size"], ["minimize", "minimize"], has_metrics=True)
    records = [replace(each, values=(1.0 + each.number, 9.0 - each.number)) for each in made_up(2)]
    records = [replace(each, state=TrialState.COMPLETE, reports=curve(0.5, 3)) for each in records]
    again = replace(records[0], number=2, values=(2.0, 7.0), origin=Replica(0, 1).origin)
    found = plots_of(summary_of([*records, again], objectives=objectives))
    [front] = [each for each in found["front"].figure.data if each.name == "Pareto front"]
    assert list(zip(front.x, front.y, strict=True)) == [(1.5, 8.0)]
    assert "of 2 trials" in found["front"].description
    assert "of 3 training runs during training" in found["curves"].description


def test_several_objectives_show_their_front() -> None:
    objectives = resolve_objectives(["accuracy", "eval_runtime"], None, has_metrics=True)
    generator = random.Random(2)
    records = [
        replace(each, state=TrialState.COMPLETE, values=(generator.random(), generator.random()), reports=())
        for each in made_up(20)
    ]
    summary = summary_of(records, objectives=objectives)
    [front] = [each for each in plots_of(summary)["front"].figure.data if each.name == "Pareto front"]
    best = [each.values for each in summary.best()]
    assert best != sorted(best)  # by number; the line through them goes from left to right
    assert list(zip(front.x, front.y, strict=True)) == sorted(best)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], "No trial has run"),
        (made_up(1), "No trial has a result: 1 pruned."),
        (made_up(2), "Of trial 1 (scope last)"),
        (
            [replace(made_up(1)[0], state=TrialState.FAILED, values=(), reports=(), reason="out of memory", spans=())],
            "No trial has a result: 1 failed. The first failure, trial 0: out of memory.",
        ),
        (
            [replace(each, values=(math.nan,), reports=curve(math.nan, 2)) for each in made_up(3)],
            "No trial has a result: 2 complete, 1 pruned.",
        ),
    ],
    ids=["none", "a pruned one", "two", "a failed one", "nothing but NaN"],
)
def test_a_study_with_hardly_a_trial_has_a_page_that_says_so(
    tmp_path: Path, records: list[TrialRecord], expected: str
) -> None:
    page = page_of(summary_of(records), tmp_path)
    assert expected in text_of(page.find(".//section[@aria-labelledby='summary']"))
    assert len(rows_of(page, "table[@class='sortable']")) == len(records)


def test_what_ran_on_what_is_a_table_with_the_lines_of_the_timeline(tmp_path: Path) -> None:
    begins = itertools.count()
    records = [
        replace(each, spans=(Span(begin := next(begins), begin + 1.5, where),))
        for each, where in zip(made_up(6), ["b, GPU 1", "a", "<i>b</i>", "a", "b, GPU 1", ""], strict=True)
    ]
    assert rows_of(page_of(summary_of(records), tmp_path), "section[@aria-labelledby='places']") == [
        ["not recorded", "1", "1", "2 s"],
        ["<i>b</i>", "2", "1", "2 s"],
        ["a", "3", "2", "3 s"],
        ["b, GPU 1", "4", "2", "3 s"],
    ]


def test_a_study_not_begun_by_the_command_line_is_repeated_in_python(tmp_path: Path) -> None:
    for damaged in (None, "{", "[]", "{}", '{"file": 1}'):
        if damaged is not None:
            (tmp_path / "command.json").write_text(damaged)
        assert how_to_repeat(tmp_path, "spirals", 3).trial == 'trainer.replay("spirals", number=3)'


def test_the_model_and_the_data_of_the_last_session_are_named(tmp_path: Path) -> None:
    search(tmp_path, 1)
    file = tmp_path / "study" / "study.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["sessions"][0]["names"] = {"model": "tiny (BertModel)", "train_dataset": "imdb train"}
    file.write_text(json.dumps(settings), encoding="utf-8")
    lead = text_of(page_of(open_study(tmp_path / "study"), tmp_path).find(".//p[@class='lead']"))
    assert "; model: tiny (BertModel)" in lead
    assert "; training data: imdb train, 16 samples; evaluation data: " in lead


@pytest.mark.parametrize("name", SEARCHES)
def test_a_study_is_reported_from_its_folder_alone_with_trials_in_every_state(name: str, tmp_path: Path) -> None:
    summary = open_study(STORED / name)
    page, found = page_of(summary, tmp_path), plots_of(summary)
    rows = rows_of(page, "table[@class='sortable']")
    assert {int(row[0]): row[1].split()[0] for row in rows} == {
        each.number: each.state.value for each in summary.records
    }
    assert "lab-1" in text_of(page.find(".//section[@aria-labelledby='places']"))
    assert "transformers" in text_of(page.find(".//section[@aria-labelledby='again']"))
    expected = {each.state.value for each in summary.records if each.reports}
    assert {each.name for each in found["history"].figure.data} == expected
    assert ("front" in found) == (name == "several_objectives")


def test_the_rungs_are_in_the_learning_curves_where_all_training_runs_are_as_long(tmp_path: Path) -> None:
    records = made_up(30)
    study = summary_of(records).study
    settings = {"study_name": "digits", "trials_wait": True, "space": "define-by-run", "scope": "last"}
    waiting = StoredStudy(tmp_path, settings, study.objectives, ())
    curves = plots_of(summary_of(records).with_study(waiting))["curves"]
    assert [each.x0 for each in curves.figure.layout.shapes] == pytest.approx([0.5, 1.5, 4.5])
    assert "Dotted lines are the rungs: the best third of the trials" in curves.description
    longer = replace(records[0], reports=tuple(replace(each, horizon=18.0) for each in records[0].reports))
    curves = plots_of(summary_of([longer, *records[1:]]).with_study(waiting))["curves"]
    assert not curves.figure.layout.shapes
    paused_at = "Trials pause at the first evaluation after 6%, 17%, 50% of their training"
    assert f"{paused_at}: the best third" in curves.description


def test_the_importances_say_what_they_rest_on() -> None:
    described = plots_of(summary_of(made_up(30)))["importances"].description
    assert described.endswith("optim 10%. It rests on the results of 12 trials.")


@pytest.mark.parametrize(
    ("trials", "second", "is_said"), [(14, 0.3, False), (15, 0.3, True), (15, 0.45, False), (15, 0.36, True)]
)
def test_a_parameter_is_called_the_most_important_only_if_it_clearly_is_by_five_results_for_each(
    trials: int, second: float, is_said: bool, tmp_path: Path
) -> None:
    shares = {"learning_rate": 0.6, "width": second, "weight_decay": 0.1}

    class Knows(NoEngine):
        def importances(self) -> Importances:
            return Importances(shares, trials)

    summary = SearchSummary(make_study(), made_up(30), Knows)
    assert ("The most important parameter is learning_rate" in text_of(page_of(summary, tmp_path))) is is_said


def test_choices_that_are_numbers_are_no_axis_of_the_contour_and_lists_are_choices() -> None:
    records = [replace(each, params={**each.params, "model.layers": [each.number % 3, 2]}) for each in made_up(30)]
    found = {each.name: each for each in plots(summary_of(records), {"per_device_train_batch_size": 0.9})}
    assert "contour" not in found  # one parameter, which is a choice
    names = ["per_device_train_batch_size", "weight_decay", "learning_rate", "model.layers"]
    found = {each.name: each for each in plots(summary_of(records), dict.fromkeys(names, 0.25))}
    contour, slices = found["contour"].figure.layout, found["slices"].figure.layout
    assert [contour.xaxis.title.text, contour.yaxis.title.text] == names[1:3]
    assert (contour.xaxis.type, contour.yaxis.type) == ("linear", "log")
    assert slices.xaxis.categoryarray == ("8", "16", "32")
    assert slices.xaxis4.categoryarray == ("[0, 2]", "[1, 2]", "[2, 2]")


def test_the_surface_of_the_contour_is_known_only_between_the_trials() -> None:
    surface, trials = plots_of(summary_of(made_up(30)))["contour"].figure.data
    for axis in ("x", "y"):
        ends = [min(trials[axis]), max(trials[axis])]
        assert [surface[axis][0], surface[axis][-1]] == pytest.approx(ends)
    assert math.isnan(surface.z[0][0])
    heights = [each for row in surface.z for each in row if not math.isnan(each)]
    reached = [float(each) for each in trials.text]
    assert min(reached) - 1e-3 <= min(heights) <= max(heights) <= max(reached) + 1e-3


def test_the_slices_show_each_state_once_in_the_legend() -> None:
    records = made_up(30)
    paused = replace(records[0], state=TrialState.PAUSED, params={"weight_decay": 0.1})  # without the first parameter
    traces = plots_of(summary_of([paused, *records[1:]]))["slices"].figure.data
    assert sorted(each.name for each in traces if each.showlegend) == ["complete", "paused", "pruned"]
    assert {each.marker.symbol for each in traces if each.name == "paused"} == {"circle-open"}


def test_a_parameter_that_only_failed_trials_have_is_left_out_of_the_slices() -> None:
    records = made_up(3)
    failed = replace(records[0], state=TrialState.FAILED, values=(), reports=(), params={"only": 1.0})
    found = {each.name: each for each in plots(summary_of([failed, *records[1:]]), {})}
    layout = found["slices"].figure.layout.to_plotly_json()
    titles = [axis["title"]["text"] for name, axis in layout.items() if name.startswith("xaxis")]
    assert titles
    assert "only" not in titles


def test_lines_through_all_parameters_have_choices_and_powers_of_ten_as_ticks() -> None:
    [lines] = plots_of(summary_of(made_up(30)))["parallel"].figure.data
    rate, decay, optim, objective = lines.dimensions
    assert (rate.label, decay.label, objective.label) == ("learning_rate", "weight_decay", "eval_accuracy")
    assert set(rate.ticktext) >= {"0.0001", "0.001", "0.01"}
    assert optim.ticktext == ("adamw_torch", "sgd")
    assert list(objective.values) == list(lines.line.color)


def test_a_trial_that_breaks_a_constraint_is_marked(tmp_path: Path) -> None:
    records = made_up(5)
    records[2] = replace(records[2], violations={"eval_runtime <= 2": 0.5})
    rows = rows_of(page_of(summary_of(records), tmp_path), "table[@class='sortable']")
    assert [row[0] for row in rows if "breaks eval_runtime <= 2" in row[1]] == ["2"]


def test_further_runs_and_means_are_marked_and_the_best_trial_is_one_with_a_mean(tmp_path: Path) -> None:
    records = made_up(9)
    complete = next(each for each in records if each.state is TrialState.COMPLETE)
    again = replace(complete, number=9, name="run-9", origin=Replica(complete.number, 1).origin)
    page = page_of(summary_of([*records, again]), tmp_path)
    states = {row[0]: row[1].replace(" ,", ",") for row in rows_of(page, "table[@class='sortable']")}
    assert states[str(complete.number)] == "complete, mean of 2 runs"
    assert states["9"] == f"complete, replica 1 of trial {complete.number}"
    assert [each for each in states.values() if "," not in each] == [
        each.state.value for each in summary_of(records).best_first() if each is not complete
    ]
    [best] = page.findall(".//table[@class='sortable']//tr[@class='best']")
    assert best.findtext("td") == str(summary_of([*records, again]).best()[0].number)


def test_the_metrics_on_the_test_set_are_said_with_how_often_it_was_evaluated(tmp_path: Path) -> None:
    search(tmp_path, 1, test_dataset=points(32, seed=2))
    study = tmp_path / "study"
    said = text_of(page_of(open_study(study), tmp_path))
    best, defaults = (f"{each.metrics['test_loss']:.4g}" for each in read_held_out(study))
    assert f"On the test set: loss {best} of trial 0; loss {defaults} of the defaults." in said
    assert "It was evaluated" not in said
    write_held_out(study, [*read_held_out(study)] * 2)
    assert "It was evaluated 2 times." in text_of(page_of(open_study(study), tmp_path))


def test_no_secret_in_the_arguments_is_on_the_page_also_not_of_an_older_study(tmp_path: Path) -> None:
    search(tmp_path, 1, trainer={"run_name": "https://user:hunter2@host/x"})
    file = tmp_path / "study" / "study.json"
    assert "hunter2" not in file.read_text(encoding="utf-8")
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["sessions"][0]["arguments"]["optim_args"] = {"server": "s3://user:hunter2@host", "api_key": "hunter2"}
    file.write_text(json.dumps(settings), encoding="utf-8")
    text = text_of(page_of(open_study(tmp_path / "study"), tmp_path))
    assert "s3://user:***@host" in text
    assert "hunter2" not in text


def test_a_command_that_is_a_link_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "study").mkdir()
    begun = {"file": "/secret.py", "folder": "/", "arguments": {}, "search": {}}
    (tmp_path / "outside.json").write_text(json.dumps(begun), encoding="utf-8")
    (tmp_path / "study" / "command.json").symlink_to(tmp_path / "outside.json")
    again = how_to_repeat(tmp_path / "study", "study", 0)
    assert again.study is None
    assert "secret" not in str(again)
    assert "a link" in caplog.text
