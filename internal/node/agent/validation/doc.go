// Package validation refuses pods from files that the API server would refuse: a static pod never
// passes it, and what is not checked here is found by the code that runs the pod, in its own way
// and again at every start. Each refusal names the field.
//
// It is pure. The pod has its defaults already. Not checked are fields that a node does not act on
// (affinity, topology spread), and kinds of volumes that the agent does not have, which it refuses
// by itself.
package validation
