"""Words of the API: group, kinds, labels, annotations, conditions. Nothing else may spell them out again."""

from typing import Final

GROUP: Final = "gpulet.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# The DRA driver; also the domain of its device attributes and of the CDI vendor.
DRIVER: Final = "gpulet.dev"
# The planner's own DeviceClass. Only the operator may name it in a claim.
DEVICE_CLASS: Final = "gpulet.dev"
SHARES_DEVICE_CLASS: Final = "shares.gpulet.dev"
CLAIM_REQUEST: Final = "gpulet"
CDI_KIND: Final = f"{DRIVER}/share"

FIELD_MANAGER: Final = "gpulet"
SYSTEM_NAMESPACE: Final = "gpulet-system"
NODE_NAMESPACE: Final = "gpulet-node"
POLICY_CONFIG_MAP: Final = "gpulet-policy"
LEASE: Final = "gpulet-controller"

# Labels
LABEL_ORIGIN: Final = f"{GROUP}/origin"  # plan | manual
LABEL_GPULET: Final = f"{GROUP}/gpulet"  # on claim and pod: the Gpulet of the same name
LABEL_MODEL: Final = f"{GROUP}/model"  # on a Gpulet and its pod: the InferenceModel it serves; the Service selects it
LABEL_JOB: Final = f"{GROUP}/tuning-job"
LABEL_PROFILE: Final = f"{GROUP}/profile"
LABEL_ROLE: Final = f"{GROUP}/role"  # serve | profile | tracker | server | client | merge
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "gpulet"
# A pod is in its model's Service only while this is "true": make before break, drain before delete.
LABEL_ROUTED: Final = f"{GROUP}/routed"
# On a Gpulet that serves until its replacement does: its share counts as taken, and no plan keeps it.
LABEL_LEAVING: Final = f"{GROUP}/leaving"
# On a TuningJob made for spec.tuning: the how-manieth of its model.
ANNOTATION_NUMBER: Final = f"{GROUP}/number"

ORIGIN_PLAN: Final = "plan"
ORIGIN_MANUAL: Final = "manual"
