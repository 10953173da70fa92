// Package volumes creates the folders and files that a pod's containers get: emptyDir, configMap,
// secret, downwardAPI and projected volumes, hostPath, their subPaths, /etc/hosts and the file for
// a termination message.
//
// [Manager.Mount] brings a pod's volumes in line with the pod and the objects it refers to. It can
// be called any number of times: at first, at every change, and after a restart of the agent, which
// keeps no record of them except for the folders themselves. What containers see changes
// atomically, by renaming one link. [Manager.Mounts] is what one container mounts. [Manager.Run]
// keeps tokens fresh. [Manager.Unmount] removes everything, and nothing outside of the pod's
// folder, whatever a container has put or mounted there.
//
// The layout below the agent's folder is that of a kubelet
// (pods/<uid>/volumes/kubernetes.io~secret/<name>). Error messages are the kubelet's, as users see
// them in FailedMount events. Image volumes, network filesystems and huge pages are
// not supported, and the event says so.
package volumes
