// Package controlplane runs a Kubernetes control plane in the calling process: etcd, the API server
// and the workload controllers, upstream's own code of the version KubernetesVersion. It decides
// how they are put together, where their state is kept and what survives an end of the process;
// what they do is Kubernetes'.
//
// Run is for programs (cmd/berth-controlplane, and through it "berth up"). Start is for tests: a
// real API server whose Deployments make pods and whose namespaces go away when they are deleted,
// with nothing to install:
//
//	func TestScaling(t *testing.T) {
//		cluster := controlplane.Start(t)
//		client := kubernetes.NewForConfigOrDie(cluster.Config)
//		...
//	}
//
// Not in it are a scheduler, node health and taint-based eviction, which are Berth's, and nodes.
// Several control planes can run in a process, one after the other or side by side, as long as they
// agree on Kubernetes' feature gates, which exist once per process. While any runs, klog writes to
// its log file.
package controlplane
