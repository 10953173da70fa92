// Package survey answers questions about all pods and nodes of a cluster: which workloads are
// pending and why, which pods have to leave their nodes and when, and what still fits where. The
// answers are plain data, for people and programs. Nothing is written to the cluster.
package survey
