// Package shadow compares the choices of another scheduler with Berth's.
//
// Beside a scheduler at work, Berth follows the cluster and keeps a queue of the pending pods, but
// decides and writes nothing. When such a pod is bound, every node is evaluated as it was when the
// pod can have been decided, and the chosen node is compared with the best. Berth always takes one
// of the best, so the gain is what the cluster would win, in points of the profile's scores.
//
// A scheduler that writes several bindings at a time writes them in another order than it decides
// pods. A difference is one only if it is one in every state in which the pod can have been
// decided; what cannot be judged is counted by itself. Which states these are is found by the core.
package shadow
