// Package pulls remembers whose credentials each image of the node was pulled with, and decides
// whether a pod may use an image that is there already: one that shows none of them has to pull it
// itself. Records are the kubelet's, in its files below image_manager in the agent's folder, so
// that an image that was pulled for one pod is not given to another after a restart, a kill or a
// change of agents.
//
// What is decided is decided from the record alone; a record that cannot be read has the pod pull.
package pulls
