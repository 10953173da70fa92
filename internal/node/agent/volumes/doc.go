// Package volumes makes the folders and files that a pod's containers are given: emptyDir,
// configMap, secret, downwardAPI and projected volumes, hostPath, their subPaths, /etc/hosts and
// the file for a termination message.
//
// [Manager.Mount] brings a pod's volumes to what the pod and the objects it refers to say now, as
// often as it is called: the first time, at every change, and after a restart of the agent, which
// keeps no record of them but the folders themselves. What is shown to containers changes all at
// once, by one rename of a link. [Manager.Mounts] is what one container mounts. [Manager.Run] keeps
// tokens fresh. [Manager.Unmount] takes everything away, and nothing that is outside of the pod's
// folder, whatever a container has put or mounted there.
//
// Below the agent's folder everything lies as below a kubelet's
// (pods/<uid>/volumes/kubernetes.io~secret/<name>). Texts of errors are the kubelet's, as users see
// them in FailedMount events. Not supported, and said so in that event: claims, CSI, image volumes
// and the network filesystems, huge pages.
package volumes
