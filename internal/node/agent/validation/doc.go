// Package validation rejects pods from files that the API server would reject. A static pod never
// passes the API server, and what is not checked here is found later by the code that runs the pod,
// in a different way and at every start. Each error names the field.
//
// It is pure. The pod has its defaults already. Fields that a node does not act on are not checked
// (affinity, topology spread), nor are volume types that the agent does not support, which it
// rejects itself.
package validation
