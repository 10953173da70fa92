package cri

import (
	"context"
	"fmt"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
)

// requestTimeout is the kubelet's default for --runtime-request-timeout.
const requestTimeout = 2 * time.Minute

// Runtime is a container runtime that can be reached.
type Runtime struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	// Name and Version as it tells them.
	Name, Version string
	// Node that sandboxes are marked with.
	Node string
}

// Connect to the runtime's socket (unix:///run/containerd/containerd.sock). A runtime that goes away later is connected to
// again by itself.
func Connect(ctx context.Context, endpoint, node string) (*Runtime, error) {
	runtime, err := criclient.NewRemoteRuntimeService(ctx, endpoint, requestTimeout, nil, false)
	if err != nil {
		return nil, fmt.Errorf("container runtime at %s: %w", endpoint, err)
	}
	images, err := criclient.NewRemoteImageService(ctx, endpoint, requestTimeout, nil, false)
	if err != nil {
		runtime.Close(ctx)
		return nil, fmt.Errorf("images of the container runtime at %s: %w", endpoint, err)
	}
	r := &Runtime{Runtime: runtime, Images: images, Node: node}
	version, err := runtime.Version(ctx, "")
	if err != nil {
		r.Close(ctx)
		return nil, fmt.Errorf("container runtime at %s: %w", endpoint, err)
	}
	r.Name, r.Version = version.RuntimeName, version.RuntimeVersion
	return r, nil
}

func (r *Runtime) Close(ctx context.Context) {
	r.Runtime.Close(ctx)
	r.Images.Close(ctx)
}

// questionTimeout is how long any question may take that changes nothing. One that was lost with its connection is asked again then.
const questionTimeout = 30 * time.Second

// Ready asks what keeps the runtime from running pods, in the words of the node's Ready condition; empty: nothing does.
func (r *Runtime) Ready(ctx context.Context) (complaint string, err error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	response, err := r.Runtime.Status(ctx, false)
	if err != nil {
		return "", err
	}
	for _, c := range response.GetStatus().GetConditions() {
		if c.Status {
			continue
		}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			return fmt.Sprintf("container runtime not ready: RuntimeReady=false reason:%s message:%s", c.Reason, c.Message), nil
		case runtimeapi.NetworkReady:
			return fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.Reason, c.Message), nil
		}
	}
	return "", nil
}
