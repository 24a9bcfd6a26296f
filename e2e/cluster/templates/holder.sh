# Runs in a new mount namespace and a node's network namespace, and keeps both open. $1: the node's folder, $2: its images.
set -eu
# Copies of other namespaces' mounts would keep those namespaces alive after they are deleted.
umount --recursive /run/netns 2>/dev/null || true
mount --bind "$1/run" /run
mount --bind "$1/var" /var
mount --bind "$2" /var/lib/containerd
# Volumes that the kubelet mounts have to reach the containers.
mount --make-rshared /
touch /run/holder-ready
exec sleep infinity
