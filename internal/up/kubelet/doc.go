// Package kubelet starts upstream's kubelet: it finds the program, writes its KubeletConfiguration
// and its command line, and reports kubelets that run already. What a node does is the kubelet's
// own business; nothing of it is made here.
package kubelet
