"""What can go wrong between processes, although the input was right."""


class RequestFailed(Exception):
    """A request could not be served; the message says why. Every other failure here is one of these."""


class DeadlineExceeded(RequestFailed):
    """It was not finished in the time that it was given; the message says what it waited for."""


class QueueFull(RequestFailed):
    """Too many requests wait already, or the router is closed; it was not taken on."""


class TransferRefused(RequestFailed):
    """What arrived is not what was to arrive; the message names it. Nothing of it was committed."""


class WorkerLost(RequestFailed):
    """A worker died or cannot be reached. The router recovers from this."""


class PayloadLost(RequestFailed):
    """A cache was gone before the decode worker had it: its prefill worker or node died. The router recovers."""
