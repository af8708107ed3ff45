"""Calls for the golden records of calibration."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from tests.golden.bind import numbered
from trainkit._core.binning import equal_width_index
from trainkit.calibration.calibrators import TemperatureScaling
from trainkit.calibration.metrics import (
    AUGRC,
    AURC,
    EAURC,
    AdaptiveCalibrationError,
    BinnedCalibrationError,
    BrierScore,
    CertifiedBinCalibration,
    ClasswiseECE,
    KSCalibrationError,
    NegativeLogLikelihood,
    PartitionedCalibrationError,
    PostHocImprovement,
    ProximityInformedECE,
    ReliabilityDiagram,
    SelectiveRisk,
    StratumCoverage,
    ThresholdedACE,
    TopOneChangeRate,
)


def value(metric, record: Mapping[str, Any]):
    inputs = record["inputs"]
    logits = torch.tensor(inputs["logits"] if "logits" in inputs else inputs["probs"], dtype=torch.float64)
    metric.update(logits, torch.tensor(inputs["labels"]))
    return metric.compute()


def brier(record):
    forms = {"value": "full", "top_label": "top_label", "halved": "half"}
    return {name: value(BrierScore(form=form), record) for name, form in forms.items()}


def negative_log_likelihood(record):
    return {"value": value(NegativeLogLikelihood(), record)}


def calibration_error(record):
    return {"value": value(BinnedCalibrationError(**record["params"]), record)}


def debiased(record):
    return {
        "value": value(BinnedCalibrationError(**record["params"]), record),
        "squared": value(BinnedCalibrationError(**record["params"], squared=True), record),
    }


def binary_edges(record):
    params = record["params"]
    scores = torch.tensor(record["inputs"]["probs"], dtype=torch.float64)
    bins = {name: params[name] for name in ("task", "n_bins", "closed")}
    return {
        "value": value(BinnedCalibrationError(**params, input_kind="probs"), record),
        "bin_index": equal_width_index(scores, params["n_bins"], params["closed"]),
        "count": value(ReliabilityDiagram(**bins, input_kind="probs"), record)["count"],
    }


def classes(record):
    return len(record["inputs"]["logits"][0])


def general(record):
    """The reference code keeps equal scores in one bin."""
    params = record["params"]
    metric = BinnedCalibrationError(
        num_classes=classes(record),
        n_bins=params["num_bins"],
        norm=params["norm"],
        binning={"even": "equal_width", "adaptive": "equal_mass"}[params["binning_scheme"]],
        reduce="top_label" if params["max_prob"] else "classwise" if params["class_conditional"] else "all",
        threshold=params.get("threshold", 0.0),
        ties="together",
    )
    return {"value": value(metric, record)}


def by_class(cls, record):
    params = record["params"]
    options = {"num_classes": classes(record), "n_bins": params["n_bins"]}
    settings = {**options, **{k: params[k] for k in ("norm", "binning", "threshold") if k in params}}
    own = {**options, **({"threshold": params["threshold"]} if params.get("threshold") else {})}
    return {
        "value": value(cls(**own), record),
        "per_class": value(BinnedCalibrationError(**settings, reduce="classwise", per_class=True), record),
    }


def adaptive(record):
    return by_class(ThresholdedACE if record["params"]["threshold"] else AdaptiveCalibrationError, record)


def ks(record):
    """``within_top_r`` is the top label's with several labels."""
    options = {"reduce": "top_label", "top_k": record["params"].get("r", 1)}
    return {
        "value": value(KSCalibrationError(**options), record),
        "signed_argmax": value(KSCalibrationError(**options, signed=True), record),
    }


def aurc(record):
    risks = record["expected"]["risk_at_coverage"]
    area, rate = value(AURC(), record), value(SelectiveRisk(1.0), record)
    return {
        "value": area,
        "aurc": area,
        "eaurc": value(EAURC(), record),
        "eaurc_geifman_closed_form": area - (rate + (1 - rate) * (1 - rate).log()),
        "risk_at_coverage": {coverage: value(SelectiveRisk(float(coverage)), record) for coverage in risks},
    }


def top_one_change_rate(record):
    inputs, params = record["inputs"], record["params"]
    logits, matrix, bias = (
        torch.tensor(values, dtype=torch.float64) for values in (inputs["logits"], params["W"], params["b"])
    )
    metric = TopOneChangeRate(return_parts=True)
    metric.update(logits, logits @ matrix.T + bias, torch.tensor(inputs["labels"]))
    told = metric.compute()
    return {"value": told["rate"], "n_changed": told["changed"], **told}


def partitioned(record):
    params, inputs = record["params"], record["inputs"]
    metric = PartitionedCalibrationError(
        params["n_groups"], n_bins=params["n_bins"], norm=params["norm"], return_parts=True
    )
    logits = torch.tensor(inputs["logits"], dtype=torch.float64)
    metric.update(logits, torch.tensor(inputs["labels"]), groups=torch.tensor(inputs["groups"]))
    told = metric.compute()
    return {"value": told["error"], **told}


def proximity_informed(record):
    params, inputs = record["params"], record["inputs"]
    metric = ProximityInformedECE(n_bins=params["conf_bins"], n_proximity_bins=params["proximity_bins"])
    logits, proximity = (torch.tensor(inputs[name], dtype=torch.float64) for name in ("logits", "proximity"))
    metric.update(logits, torch.tensor(inputs["labels"]), proximity=proximity)
    return {"value": metric.compute()}


def post_hoc(record):
    """The calibrator is given in words that end in its temperature."""
    logits = torch.tensor(record["inputs"]["logits"], dtype=torch.float64)
    temperature = float(record["params"]["calibrator"].removeprefix("temperature T="))
    metric = PostHocImprovement(return_parts=True)
    metric.update(logits, logits / temperature, torch.tensor(record["inputs"]["labels"]))
    told = metric.compute()
    improvements = {f"phi_{score}": told[score] for score in record["params"]["scores"]}
    relative = {f"relative_phi_{score}": told[f"{score}_relative"] for score in record["params"]["scores"]}
    return {"value": told["nll"], **improvements, **relative}


def stratum_coverage(record):
    """The record's disparity is the range over groups of any size."""
    metric = StratumCoverage(record["params"]["n_strata"], min_count=1, return_parts=True)
    metric.update(torch.tensor(record["inputs"]["covered"]), groups=torch.tensor(record["inputs"]["stratum"]))
    told = metric.compute()
    return {
        "value": told["marginal"],
        "marginal": told["marginal"],
        "per_stratum": told["per_group"],
        "worst_stratum_coverage": told["worst"],
        "max_disparity": told["range"],
        "max_abs_gap_to_marginal": told["gap"],
    }


def certified(record):
    """Confidence and whether it was right are what binary scores and targets are; an empty bin has no bound."""
    confidence, correct, lipschitz = (
        torch.tensor(record["inputs"][name], dtype=torch.float64) for name in ("confidence", "correct", "lipschitz")
    )
    metric = CertifiedBinCalibration(**record["params"], task="binary", input_kind="probs")
    metric.update(confidence, correct, lipschitz=lipschitz)
    bound = numbered(metric.compute().tolist())
    return {"value": bound, "bound_per_bin": bound}


def temperature(record):
    logits = torch.tensor(record["inputs"]["logits"], dtype=torch.float64)
    calibrator = TemperatureScaling(**record["params"])
    with warnings.catch_warnings():
        # Separable and reversed data lead to a bound, of which the fit warns.
        warnings.filterwarnings("ignore", "TemperatureScaling: .* bound", UserWarning)
        calibrator.fit(logits, torch.tensor(record["inputs"]["labels"]))
    return {
        "value": calibrator.temperature,
        "temperature": calibrator.temperature,
        "nll_before": negative_log_likelihood(record)["value"],
        "nll_after": calibrator.nll,
        "probs_first6": calibrator.predict_proba(logits[:6]),
    }


NAMES = {
    "AUGRC": lambda record: {"value": value(AUGRC(), record)},
    "AURC": aurc,
    "AdaptiveCalibrationError": adaptive,
    "BrierScore": brier,
    "CalibrationError.binary_edges": binary_edges,
    "CalibrationError.debiased_l2": debiased,
    "CalibrationError.top_label": calibration_error,
    "CalibrationError.top_label_equal_mass": calibration_error,
    "CertifiedBinCalibration": certified,
    "ClasswiseCalibrationError": lambda record: by_class(ClasswiseECE, record),
    "KSCalibrationError": ks,
    "NegativeLogLikelihood": negative_log_likelihood,
    "PartitionedCalibrationError": partitioned,
    "PostHocImprovement": post_hoc,
    "ProximityInformedECE": proximity_informed,
    "StratumCoverage": stratum_coverage,
    "TemperatureScaling": temperature,
    "TemperatureScaling.antisignal": temperature,
    "TemperatureScaling.separable": temperature,
    "TopOneChangeRate": top_one_change_rate,
    **{f"GeneralCalibrationError.{kind}": general for kind in ("ACE", "ECE", "RMSCE", "SCE", "SCE_l2", "TACE")},
}
