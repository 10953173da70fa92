// Package e2enode has tests of real nodes as a user has them: `berth up --agent`, and `berth agent`
// on another cluster, with upstream's kubelet on containerds of their own. They need root, and
// containerd (which they install by apt where it is missing); a machine that cannot run containers
// skips them and says why.
//
// What the kubelet itself does is tested by upstream, and by its NodeConformance specs on this node
// (test/specs). Here is what Berth adds: how the kubelet is configured, started and ended, and what
// the rest of Berth makes of its node.
package e2enode
