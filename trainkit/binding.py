"""How recipes feed losses and metrics: each is given the tensors that its signature names."""

from trainkit._core.binding import bind as bind
