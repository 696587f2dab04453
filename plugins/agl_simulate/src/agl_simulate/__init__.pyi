from .advice import (
    Advice as Advice,
    advise as advise,
)
from .cluster import (
    Cluster as Cluster,
    Mode as Mode,
    Prediction as Prediction,
)
from .engine import simulate as simulate
from .fitting import fit as fit
from .workload import (
    Profile as Profile,
    Workload as Workload,
)
