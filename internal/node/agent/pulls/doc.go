// Package pulls records which credentials each image on the node was pulled with, and decides
// whether a pod may use an image that is already present: a pod with none of these credentials has
// to pull it itself. Records are the kubelet's, in the kubelet's files below image_manager in the
// agent's folder, so that an image pulled for one pod is not given to another after a restart, a
// kill or a change of agents.
//
// Decisions depend only on the record. If a record cannot be read, the pod has to pull.
package pulls
