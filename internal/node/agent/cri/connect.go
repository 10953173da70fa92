package cri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
)

// requestTimeout is the kubelet's default for --runtime-request-timeout.
const requestTimeout = 2 * time.Minute

// Runtime is a connection to a container runtime.
type Runtime struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	// Name and Version are as the runtime reports them.
	Name, Version string
	// Node is the node that sandboxes are marked with.
	Node string
}

// Connect connects to the runtime's socket (unix:///run/containerd/containerd.sock). It reconnects
// by itself to a runtime that was restarted.
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

// questionTimeout bounds a request that changes nothing. One that was lost with its connection is
// repeated.
const questionTimeout = 30 * time.Second

// State is the runtime's status as it reports it.
type State struct {
	// Complaint is what keeps it from running pods, for the node's Ready condition; empty: nothing
	// does.
	Complaint string
	// SupplementalGroupsPolicy: it respects a pod's policy, instead of always adding the image's
	// groups.
	SupplementalGroupsPolicy bool
	// Handlers that RuntimeClasses can name, "" for the default one, with what each can do.
	Handlers []v1.NodeRuntimeHandler
}

// Handler returns the handler of a name; nil if the runtime does not report it.
func (s State) Handler(name string) *v1.NodeRuntimeHandler {
	for i := range s.Handlers {
		if s.Handlers[i].Name == name {
			return &s.Handlers[i]
		}
	}
	return nil
}

// State reads the runtime's status and features. It lacks the features that it does not report.
func (r *Runtime) State(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	response, err := r.Runtime.Status(ctx, false)
	if err != nil {
		return State{}, err
	}
	state := State{Complaint: complaint(response), SupplementalGroupsPolicy: response.GetFeatures().GetSupplementalGroupsPolicy()}
	for _, h := range response.GetRuntimeHandlers() {
		recursive, users := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		state.Handlers = append(state.Handlers, v1.NodeRuntimeHandler{Name: h.GetName(), Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users,
		}})
	}
	slices.SortFunc(state.Handlers, func(a, b v1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	return state, nil
}

func complaint(response *runtimeapi.StatusResponse) string {
	for _, c := range response.GetStatus().GetConditions() {
		if c.Status {
			continue
		}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			return fmt.Sprintf("container runtime not ready: RuntimeReady=false reason:%s message:%s", c.Reason, c.Message)
		case runtimeapi.NetworkReady:
			return fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.Reason, c.Message)
		}
	}
	return ""
}
