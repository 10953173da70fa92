// Package agentparity holds what the node agent tells its containers against the kubelet's own
// code: the expansion of $(VAR), the variables of services and of files, how a pod resolves names,
// and the files of a volume as they are laid out. Random input goes through both; they must agree.
package agentparity
