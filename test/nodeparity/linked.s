// Functions without a body are those of the kubelet, by go:linkname; without this file the compiler refuses them.
