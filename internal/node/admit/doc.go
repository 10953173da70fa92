// Package admit decides whether a node takes a pod that is bound to it: room, node affinity, host
// ports, NoExecute taints, operating system, sysctls, and pressure, from the pod, the node as it
// last was, and the pods it has taken. The answer has the kubelet's reasons and messages. For a
// critical pod that only lacks room, the answer names the pods that make room for it, as few and as
// unimportant as the kubelet would choose.
//
// It is pure, and imports no client.
package admit
