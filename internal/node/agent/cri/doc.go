// Package cri is the way to the container runtime: the connection, what it shows of pods as package
// lifecycle wants to see it, and the configurations of sandboxes and containers as they follow from
// a pod.
//
// All that identifies a pod is in the labels and annotations that the kubelet writes, too, so that
// crictl shows it, and so that an agent that was killed finds its pods again. One annotation more
// on sandboxes names the node: sandboxes without it were made by others, and are left alone.
package cri
