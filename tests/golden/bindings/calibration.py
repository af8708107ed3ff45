"""Calls for the golden records of calibration."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from tests.golden.bind import numbered
from trainkit._core.binning import equal_width_index
from trainkit._core.crps import crps_mixture, crps_normal
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
    EnsembleCRPS,
    IntervalScore,
    KDECalibrationError,
    KSCalibrationError,
    LabelConstrainedECE,
    LabelRankingCalibrationError,
    LogME,
    MaNo,
    MixtureCRPS,
    NegativeLogLikelihood,
    NormalCRPS,
    PartitionedCalibrationError,
    PITCalibrationError,
    PostHocImprovement,
    ProximityInformedECE,
    QuantileCalibrationError,
    QuantileScore,
    ReliabilityDiagram,
    RewardModelCalibrationError,
    SelectiveRisk,
    SmoothCalibrationError,
    StratumCoverage,
    TestBasedCalibrationError,
    ThresholdedACE,
    TopOneChangeRate,
    normal_pit,
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


def kde(record):
    """The reference code's ``marginal`` is classwise; its gradients take probabilities as free."""
    params = record["params"]
    reduce = {"marginal": "classwise"}.get(params["mc_type"], params["mc_type"])
    probs = torch.tensor(record["inputs"]["probs"], dtype=torch.float64, requires_grad=True)
    metric = KDECalibrationError(reduce=reduce, p=params["p"], bandwidth=params["bandwidth"], input_kind="probs")
    error = metric(probs, torch.tensor(record["inputs"]["labels"]))
    (grad,) = torch.autograd.grad(error, probs)
    return {"value": error.detach(), "grad": {"probs": grad}}


def label_bins(record):
    """The reference code pools the last labels by another rule; ``n_bin`` is the number of bins."""
    params, expected = record["params"], record["expected"]
    names = {"n_bin": "n_bins", "mode": "norm"}
    cls = TestBasedCalibrationError if record["name"].startswith("TestBased") else LabelConstrainedECE
    options = {names.get(k, k): v for k, v in params.items()}
    metric = cls("binary", **options, official_compat=True, return_parts=True, input_kind="probs")
    told = value(metric, record)
    keys = {"bin_totals": "count", "bin_positives": "positives", "bin_edges": "edges"}
    return {"value": told["value"], **{k: told[own] for k, own in keys.items() if k in expected}}


def smooth(record):
    """Records of confidences are of top labels that were right or not: binary targets."""
    inputs = record["inputs"]
    scores, hits = inputs.get("confidence", inputs.get("probs")), inputs.get("correct", inputs.get("labels"))
    metric = SmoothCalibrationError(
        "binary", sigma=record["params"].get("sigma"), return_parts=True, input_kind="probs"
    )
    metric.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(hits))
    return metric.compute()


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


def label_ranking(record):
    inputs, options = record["inputs"], {name: record["params"][name] for name in ("n_bins", "norm")}
    scores, rankings = torch.tensor(inputs["scores"], dtype=torch.float64), torch.tensor(inputs["rankings"])

    def error(**events):
        metric = LabelRankingCalibrationError(**options, **events)
        metric.update(scores, rankings)
        return metric.compute()

    pairs = error()
    return {
        "value": pairs,
        "pairwise_ece_positive": pairs,
        "pairwise_ece_top": error(folded=True),
        "top1_ece": error(events="top_k", k=1),
        "top2_ece": error(events="top_k", k=2),
        "full_rank_ece": error(events="full"),
    }


def log_me(record):
    features, labels = record["inputs"]["features"], record["inputs"]["labels"]
    metric = LogME(len(features[0]), max(labels) + 1, return_parts=True, **record["params"])
    metric.update(torch.tensor(features, dtype=torch.float64), torch.tensor(labels))
    told = metric.compute()
    return {"value": told["log_me"], **told}


def mano(record):
    metric = MaNo(**record["params"], return_parts=True)
    metric.update(torch.tensor(record["inputs"]["logits"], dtype=torch.float64))
    told = metric.compute()
    return {"value": told["score"], **told}


def reward_model(record):
    metric = RewardModelCalibrationError(**record["params"], return_parts=True)
    inputs = (record["inputs"][name] for name in ("reward_chosen", "reward_rejected"))
    metric.update(*(torch.tensor(values, dtype=torch.float64) for values in inputs))
    told = metric.compute()
    return {"value": told["error"], **told}


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


def tensors(record, *names):
    return tuple(torch.tensor(record["inputs"][name], dtype=torch.float64) for name in names)


def updated(metric, *inputs):
    metric.update(*inputs)
    return metric.compute()


def pit_calibration_error(record):
    pit = normal_pit(*tensors(record, "mu", "sigma", "y"))
    told = {
        f"pce_l{p}_{form}": updated(PITCalibrationError(p, record["params"]["n_levels"], form), pit)
        for p in (1, 2)
        for form in ("grid", "sorted")
    }
    return {"value": told["pce_l1_grid"], "pit": pit, **told}


def crps_of_normal(record):
    mean, std, target = tensors(record, "mu", "sigma", "y")
    metric = updated(NormalCRPS(), mean, std, target)
    leaves = {"mu": mean.requires_grad_(), "sigma": std.requires_grad_()}
    rows = crps_normal(mean, std, target).crps
    gradients = torch.autograd.grad(rows.mean(), list(leaves.values()))
    return {"value": metric, "per_sample": rows.detach(), "grad": dict(zip(leaves, gradients, strict=True))}


def crps_of_mixture(record):
    (target,) = tensors(record, "y")
    components = (
        torch.tensor(record["params"][name], dtype=torch.float64).expand(len(target), -1)
        for name in ("weights", "means", "scales")
    )
    inputs = (*components, target)
    return {"value": updated(MixtureCRPS(), *inputs), "per_sample": crps_mixture(*inputs).crps}


def crps_of_ensemble(record):
    told = {fair: updated(EnsembleCRPS(fair), *tensors(record, "samples", "y")) for fair in (False, True)}
    return {"value": told[False], "biased": told[False], "fair": told[True]}


def interval_score(record):
    metric = IntervalScore(**record["params"], return_parts=True)
    told = updated(metric, *tensors(record, "lower", "upper", "y"))
    return {"value": told["score"], "coverage": told["coverage"], "mean_width": told["width"]}


def pinball(record):
    levels, inputs = record["params"]["levels"], tensors(record, "quantiles", "y")
    told = updated(QuantileScore(levels, return_parts=True), *inputs)
    return {
        "value": told["score"],
        "per_level": told["per_level"],
        "quantile_ece_l1": updated(QuantileCalibrationError(levels), *inputs),
    }


NAMES = {
    "AUGRC": lambda record: {"value": value(AUGRC(), record)},
    "AURC": aurc,
    "AdaptiveCalibrationError": adaptive,
    "BrierScore": brier,
    "CRPS.ensemble": crps_of_ensemble,
    "CRPS.normal": crps_of_normal,
    "CRPS.normal_mixture": crps_of_mixture,
    "CalibrationError.binary_edges": binary_edges,
    "CalibrationError.debiased_l2": debiased,
    "CalibrationError.top_label": calibration_error,
    "CalibrationError.top_label_equal_mass": calibration_error,
    "CertifiedBinCalibration": certified,
    "ClasswiseCalibrationError": lambda record: by_class(ClasswiseECE, record),
    "IntervalScore": interval_score,
    "KSCalibrationError": ks,
    "LabelRankingCalibrationError": label_ranking,
    "LogME": log_me,
    "MaNo": mano,
    "NegativeLogLikelihood": negative_log_likelihood,
    "PITCalibrationError": pit_calibration_error,
    "PinballLoss": pinball,
    "RewardModelCalibrationError": reward_model,
    "LabelConstrainedECE.pavabc": label_bins,
    "SmoothCalibrationError": smooth,
    "SmoothCalibrationError.fixed_sigma": smooth,
    "PartitionedCalibrationError": partitioned,
    "PostHocImprovement": post_hoc,
    "ProximityInformedECE": proximity_informed,
    "StratumCoverage": stratum_coverage,
    "TemperatureScaling": temperature,
    "TemperatureScaling.antisignal": temperature,
    "TemperatureScaling.separable": temperature,
    "TopOneChangeRate": top_one_change_rate,
    **{f"TestBasedCalibrationError.{kind}": label_bins for kind in ("pavabc", "quantile", "uniform")},
    **{f"KDECalibrationError.{kind}": kde for kind in ("canonical", "marginal", "top_label")},
    **{f"GeneralCalibrationError.{kind}": general for kind in ("ACE", "ECE", "RMSCE", "SCE", "SCE_l2", "TACE")},
}
