// Package csi has volumes made by CSI drivers (Container Storage Interface v1) that run on the
// node, with the calls, the folders and the files of the kubelet.
//
// [Drivers] are the drivers that have registered through package registry; what they say of the
// node goes into its labels and its CSINode object. [Publisher] has a driver stage and publish a
// volume for a pod, and take both back.
//
// What a driver has to take back is on disk before it is asked to make it: vol_data.json beside
// each pod's volume and beside each staged volume names driver and volume. So nothing is left
// behind by a kill of the agent, and nothing is taken back while a pod has it.
package csi
