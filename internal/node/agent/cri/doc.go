// Package cri is the connection to the container runtime: what it shows of pods in the form that
// package lifecycle needs, and the configurations of sandboxes and containers that follow from a
// pod.
//
// A pod is identified by the kubelet's labels and annotations, so that crictl shows it, and an
// agent that was killed finds its pods again. One more annotation on sandboxes names the node:
// sandboxes without it were made by others, and are left alone.
package cri
