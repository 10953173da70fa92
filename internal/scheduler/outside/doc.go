// Package outside lets plugins written for kube-scheduler work in Berth, compiled in without a
// change: everything that implements the interfaces of k8s.io/kube-scheduler/framework v0.37, at
// every extension point.
//
// A plugin that judges or scores nodes becomes a filter or scorer of package plugins and is asked
// node by node; one that is asked at another extension point becomes an extension of the live
// scheduler. Both see the cluster as kube-scheduler shows it: a NodeInfo for every node, with the
// API objects in it, as it is when the pod is decided, and a CycleState that goes with the pod from
// PreFilter to PostBind. The objects are kept only while there are such plugins ([Objects]).
//
// The order of calls, the effect of each status and the messages are as in kube-scheduler's
// framework runtime. docs/plugins.md lists what a Handle gives and what it cannot give.
package outside
