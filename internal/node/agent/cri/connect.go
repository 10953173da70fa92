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

// Runtime is a container runtime that can be reached.
type Runtime struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	// Name and Version as it tells them.
	Name, Version string
	// Node that sandboxes are marked with.
	Node string
}

// Connect to the runtime's socket (unix:///run/containerd/containerd.sock). A runtime that goes
// away later is connected to again by itself.
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

// questionTimeout is how long any question may take that changes nothing. One that was lost with
// its connection is asked again then.
const questionTimeout = 30 * time.Second

// State of the runtime, as it tells it.
type State struct {
	// Complaint is what keeps it from running pods, in the words of the node's Ready condition;
	// empty: nothing does.
	Complaint string
	// SupplementalGroupsPolicy: it heeds the policy of a pod, and does not add the image's groups
	// whatever that says.
	SupplementalGroupsPolicy bool
	// Handlers that RuntimeClasses can name, "" for the default one, with what each can do.
	Handlers []v1.NodeRuntimeHandler
}

// Handler of a name; nil: the runtime does not tell of it.
func (s State) Handler(name string) *v1.NodeRuntimeHandler {
	for i := range s.Handlers {
		if s.Handlers[i].Name == name {
			return &s.Handlers[i]
		}
	}
	return nil
}

// State asks the runtime how it is and what it can do. What it does not say that it can do, it
// cannot.
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
