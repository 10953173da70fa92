// Package admit decides whether a node admits a pod that is bound to it: room, node affinity, host
// ports, NoExecute taints, operating system, sysctls, and pressure, from the pod, the node's newest
// object, and the pods already admitted. Reasons and messages are the kubelet's. For a critical pod
// that lacks only room, the answer names the pods to evict for it, as few and as unimportant as the
// kubelet would choose.
//
// It is pure, and imports no client.
package admit
