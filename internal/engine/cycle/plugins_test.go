// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// holds is an out-of-tree plugin that makes labeled pods wait at Permit.
type holds struct{}

func (holds) Name() string { return "Holds" }
func (holds) Permit(a *Attempt) (*plugins.Rejection, time.Duration) {
	if a.Pod.Labels["hold"] != "" {
		return nil, 30 * time.Second
	}
	return nil, 0
}

// reserves is an out-of-tree plugin that makes a reservation for every pod with a node, and works
// before the binding. The reservation is released, or kept with the bound pod.
type reserves struct {
	open map[*Attempt]string
	// moody is set if the plugin refuses the first attempt of some pods, with a verdict or an
	// error.
	moody   bool
	refused map[types.UID]bool
}

func (*reserves) Name() string { return "Reserves" }

// Reserve makes the reservation, or fails for labeled pods.
func (r *reserves) Reserve(a *Attempt) *plugins.Rejection {
	if a.Pod.Labels["fails"] != "" {
		return &plugins.Rejection{Err: errors.New("it is broken")}
	}
	r.open[a] = a.Pod.Name
	if mood := len(r.refused) % 3; r.moody && !r.refused[a.Pod.UID] {
		r.refused[a.Pod.UID] = true
		switch mood {
		case 0:
			return &plugins.Rejection{Err: errors.New("it is in no mood")}
		case 1:
			return &plugins.Rejection{Code: "Mood", Reasons: []string{"it is in no mood"}}
		}
	}
	return nil
}

// Unreserve releases the reservation.
func (r *reserves) Unreserve(a *Attempt) { delete(r.open, a) }

// End stops tracking the reservation of a bound pod, which keeps it.
func (r *reserves) End(a *Attempt, bound bool) {
	if bound {
		delete(r.open, a)
	}
}

// Needed is never called: the world supplies the result.
func (*reserves) Needed(context.Context, *Attempt) (PreBindWork, error) { return PreBindWork{}, nil }

// PreBind is never called: the world supplies the result.
func (*reserves) PreBind(context.Context, *Attempt) error { return nil }

// reservesOf finds the reserves plugin among the profiles' plugins.
func reservesOf(profiles []Profile) *reserves {
	for _, p := range profiles {
		for _, e := range p.Extensions {
			if r, ok := e.(*reserves); ok {
				return r
			}
		}
	}
	return nil
}

// at is a plugin and its extension points.
type at struct {
	Extension
	points []plugins.Point
}

// profileWith returns the default profile with out-of-tree plugins.
func profileWith(extensions ...at) Profile {
	d := plugins.Default()
	points := map[plugins.Point][]string{}
	for _, point := range plugins.AllPoints {
		points[point] = slices.Clone(d.At[point])
	}
	var list []Extension
	for _, e := range extensions {
		list = append(list, e.Extension)
		for _, point := range e.points {
			points[point] = append(points[point], e.Name())
		}
	}
	made, err := plugins.NewProfile(v1.DefaultSchedulerName, points, d.Weights, nil)
	if err != nil {
		panic(err)
	}
	return Profile{Profile: made, Extensions: list}
}

var holdsAtPermit = at{holds{}, []plugins.Point{plugins.Permit}}

func reservesAtItsPoints() at {
	return at{&reserves{open: map[*Attempt]string{}, refused: map[types.UID]bool{}}, []plugins.Point{plugins.Reserve, plugins.PreBind}}
}
