package registry

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	api "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-k8s/berth/internal/node/agent/socket"
)

// register asks a plugin what it is, has it taken, and tells it what became of that.
func (w *Watcher) register(ctx context.Context, e *entry) (*Plugin, error) {
	conn, err := socket.Dial(e.path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := api.NewRegistrationClient(conn)
	p, err := ask(ctx, client, e.path)
	if err != nil {
		return nil, err
	}
	switch err := w.take(ctx, p, e); {
	case errors.Is(err, errBefore):
		return nil, err // it is asked again, and hears of nothing
	case err != nil:
		return nil, errors.Join(err, tell(ctx, client, err))
	}
	if err := tell(ctx, client, nil); err != nil { // as with the kubelet: it does not know that it is used
		w.giveUp(e, *p)
		return nil, err
	}
	return p, nil
}

// ask asks a plugin what it is.
func ask(ctx context.Context, client api.RegistrationClient, path string) (*Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	info, err := client.GetInfo(ctx, &api.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("failed to get plugin info using RPC GetInfo at socket %s, err: %w", path, err)
	}
	p := &Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: slices.Clone(info.GetSupportedVersions())}
	if p.Endpoint == "" {
		p.Endpoint = path
	}
	return p, nil
}

// errBefore: the registration at the socket that was in this one's place is being called off.
var errBefore = errors.New("the plugin's registration before it was restarted is not over")

// take has a plugin's handler take it. A name belongs to the plugin that has registered with it as
// long as that one listens: one that was killed left its socket.
func (w *Watcher) take(ctx context.Context, p *Plugin, e *entry) error {
	handler := w.Handlers[p.Type]
	switch {
	case handler == nil:
		return fmt.Errorf("no handler registered for plugin type: %s at socket %s", p.Type, e.path)
	case p.Name == "":
		return fmt.Errorf("the plugin at socket %s has no name", e.path)
	case !filepath.IsAbs(p.Endpoint):
		return fmt.Errorf("endpoint %q: must be an absolute path", p.Endpoint)
	case len(p.Versions) == 0:
		return fmt.Errorf("plugin %s returned an empty list for supported versions", p.Name)
	}
	holder := w.claim(e, nil, p)
	if holder != nil && holder.path == e.path {
		return errBefore
	}
	replaces := holder != nil && !answers(ctx, holder.path)
	if replaces {
		holder = w.claim(e, holder, p)
	}
	if holder != nil {
		return fmt.Errorf("a plugin named %s is registered already, at socket %s", p.Name, holder.path)
	}
	ctx, cancel := context.WithTimeout(ctx, registerMost)
	defer cancel()
	err := handler.Register(ctx, *p)
	switch {
	case err != nil && replaces: // nobody else would give up the one that was killed
		w.giveUp(e, *p)
	case err != nil:
		w.release(e, p)
	}
	return err
}

// tell tells a plugin what became of its registration.
func tell(ctx context.Context, client api.RegistrationClient, refused error) error {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	status := &api.RegistrationStatus{PluginRegistered: refused == nil}
	if refused != nil {
		status.Error = "plugin registration failed with err: " + refused.Error()
	}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("failed to send registration status: %w", err)
	}
	return nil
}
