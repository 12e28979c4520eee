package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// Observe compares what the engine says of the container with what it shall be.
func (e *Engine) Observe(ctx context.Context, r wire.Resource) (host.Observation, error) {
	w, err := e.wanted(r)
	if appliance.KindOf(err) == appliance.NotFound { // its user comes before it
		return host.Observation{Differs: err.Error()}, nil
	}
	if err != nil {
		return host.Observation{}, err
	}
	c, ours, err := e.find(ctx, w)
	if err != nil {
		return host.Observation{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if holder, err := c.foreign(ctx, w, ours); err != nil || holder != "" {
		return host.Observation{Present: true, Differs: "its name is another's: " + holder}, err
	}
	if len(ours) == 0 {
		return host.Observation{}, nil
	}
	image, err := c.image(ctx, w)
	if errdefs.IsNotFound(err) {
		return host.Observation{Present: true, Differs: "its image is gone"}, nil
	}
	if err != nil {
		return host.Observation{}, failed("look at image "+w.spec.Image, err)
	}
	o := host.Observation{Present: true, Differs: cmp.Or(c.differs(ctx, w, ours[0], image), w.kept(ours[0], c.started()))}
	if o.Differs == "" && len(ours) > 1 {
		o.Differs = "there is another of it: " + nameOf(ours[1])
	}
	o.Matches = o.Differs == ""
	return o, nil
}

// Before keeps nothing: names and labels are the mesh's own, and what pulls change on the machine is kept once for all containers.
func (e *Engine) Before(context.Context, wire.Resource) (json.RawMessage, error) { return nil, nil }

// Do makes the container what it shall be. One that is made right is kept, whatever became of it; otherwise another takes its place, and
// while that cannot be created or started the old one goes on.
func (e *Engine) Do(ctx context.Context, r wire.Resource) error {
	w, err := e.wanted(r)
	if err == nil {
		err = e.steady(w)
	}
	if err != nil {
		return err
	}
	c, ours, err := e.find(ctx, w)
	if err != nil {
		return err
	}
	defer c.Close()
	if holder, err := c.foreign(ctx, w, ours); err != nil {
		return err
	} else if holder != "" {
		return appliance.Errorf(appliance.Conflict, "make container %s: its name is another's: %s", w.name, holder).
			WithHint("it does not carry this installation's labels, so it stays as it is; rename or remove it")
	}
	image, err := e.pull(ctx, c, w)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, changing(ours...))
	defer cancel()
	i := slices.IndexFunc(ours, func(have container.InspectResponse) bool { return c.differs(ctx, w, have, image) == "" })
	if i < 0 {
		return c.replace(ctx, w, ours)
	}
	return c.keep(ctx, w, ours[i], slices.Delete(slices.Clone(ours), i, i+1))
}

// replace makes another container of what there is now, under a name of the engine's choice until the old one gives it up.
func (c *connection) replace(ctx context.Context, w wanted, old []container.InspectResponse) error {
	made, err := c.create(ctx, w)
	if err != nil {
		return failed("create container "+w.name, err)
	}
	next, err := c.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if err != nil {
		return errors.Join(failed("look at container "+short(made.ID), err), c.remove(ctx, made.ID))
	}
	if err := c.keep(ctx, w, next.Container, old); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		return errors.Join(err, c.remove(ctx, made.ID))
	}
	return nil
}

func (c *connection) create(ctx context.Context, w wanted) (client.ContainerCreateResult, error) {
	return c.ContainerCreate(ctx, client.ContainerCreateOptions{Config: w.config, HostConfig: w.host})
}

// keep has next run, or not, in the place of the old ones. Where that does not come about, what ran before runs again, and next is not.
func (c *connection) keep(ctx context.Context, w wanted, next container.InspectResponse, old []container.InspectResponse) error {
	err := c.policy(ctx, w, next)
	var back []func(context.Context) error
	for _, o := range old {
		if err == nil && (o.State.Running || o.State.Restarting) {
			back = append(back, func(ctx context.Context) error { return c.start(ctx, o.ID, nameOf(o)) })
			err = c.stop(ctx, o)
		}
		if err == nil && nameOf(o) == w.name {
			back = append(back, func(ctx context.Context) error { return c.rename(ctx, o.ID, w.name) })
			err = c.rename(ctx, o.ID, w.name+"."+short(o.ID))
		}
	}
	if err == nil && nameOf(next) != w.name { // before it runs: one that ends at once cannot be renamed
		err = c.rename(ctx, next.ID, w.name)
	}
	if err == nil {
		err = c.run(ctx, w, next)
	}
	if err != nil && len(back) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, c.remove(ctx, next.ID))
		for _, undo := range slices.Backward(back) {
			err = errors.Join(err, undo(ctx))
		}
	}
	for _, o := range old {
		if err == nil {
			err = c.remove(ctx, o.ID)
		}
	}
	return err
}

func (c *connection) rename(ctx context.Context, id, name string) error {
	_, err := c.ContainerRename(ctx, id, client.ContainerRenameOptions{NewName: name})
	return failed("rename container "+short(id)+" to "+name, err)
}

// policy says to the engine how the container is kept going.
func (c *connection) policy(ctx context.Context, w wanted, have container.InspectResponse) error {
	if have.HostConfig.RestartPolicy.Name == w.host.RestartPolicy.Name {
		return nil
	}
	_, err := c.ContainerUpdate(ctx, have.ID, client.ContainerUpdateOptions{RestartPolicy: &w.host.RestartPolicy})
	return failed("say how container "+w.name+" is kept", err)
}

// run has a container that is made right run, or not.
func (c *connection) run(ctx context.Context, w wanted, have container.InspectResponse) error {
	switch {
	case state(have, w.spec.Run, c.started()) == "":
		return nil
	case w.spec.Stopped:
		return c.stop(ctx, have)
	case have.State.Paused:
		_, err := c.ContainerUnpause(ctx, have.ID, client.ContainerUnpauseOptions{})
		return failed("let container "+w.name+" go on", err)
	}
	return c.start(ctx, have.ID, w.name)
}

func (c *connection) start(ctx context.Context, id, name string) error {
	_, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return failed("start container "+name, err)
}

// stop ends a container within the time it was made with. What is paused would not hear of it.
func (c *connection) stop(ctx context.Context, have container.InspectResponse) error {
	if have.State.Paused {
		if _, err := c.ContainerUnpause(ctx, have.ID, client.ContainerUnpauseOptions{}); err != nil {
			return failed("stop container "+nameOf(have), err)
		}
	}
	_, err := c.ContainerStop(ctx, have.ID, client.ContainerStopOptions{})
	return failed("stop container "+nameOf(have), err)
}

func (c *connection) remove(ctx context.Context, id string) error {
	_, err := c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return failed("remove container "+short(id), err)
}

// Undo removes the container. Its data lies in folders of the node.
func (e *Engine) Undo(ctx context.Context, r wire.Resource, _ json.RawMessage) (bool, error) {
	w, err := e.named(r)
	if err != nil {
		return false, err
	}
	if e.gone() {
		return false, e.distrust()
	}
	c, ours, err := e.find(ctx, w)
	if err != nil {
		return false, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, changing(ours...))
	defer cancel()
	for _, have := range ours {
		if have.State.Running || have.State.Restarting {
			err = c.stop(ctx, have)
		}
		if err = errors.Join(err, c.remove(ctx, have.ID)); err != nil {
			return false, err
		}
	}
	left, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter(w.labels, labelMesh, labelNode, labelState)})
	if err != nil || len(left.Items) > 0 {
		return false, failed("list containers", err)
	}
	return false, e.distrust()
}

// find connects to the engine, and lists the containers of a resource.
func (e *Engine) find(ctx context.Context, w wanted) (*connection, []container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := e.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	ours, err := c.ours(ctx, w)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, ours, nil
}

// changing is how long it may take to end all of these, and a little more.
func changing(all ...container.InspectResponse) time.Duration {
	d := patience
	for _, have := range all {
		d += time.Second * time.Duration(valueOf(have.Config.StopTimeout))
	}
	return d
}

// ours lists the containers that carry the resource's labels, the one that has its name first, then those that run. There is more than one
// only where an agent was ended between making one and removing the other.
func (c *connection) ours(ctx context.Context, w wanted) ([]container.InspectResponse, error) {
	list, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter(w.labels, labelMesh, labelNode, labelState, labelResource)})
	if err != nil {
		return nil, failed("list containers", err)
	}
	var found []container.InspectResponse
	for _, item := range list.Items {
		have, err := c.ContainerInspect(ctx, item.ID, client.ContainerInspectOptions{})
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, failed("look at container "+short(item.ID), err)
		}
		if h := have.Container; h.State == nil || h.Config == nil || h.HostConfig == nil {
			return nil, appliance.Errorf(appliance.Unavailable, "look at container %s: the engine says nothing of it", short(item.ID))
		}
		found = append(found, have.Container)
	}
	rank := func(h container.InspectResponse) int {
		switch {
		case nameOf(h) == w.name:
			return 0
		case h.State.Running:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(found, func(a, b container.InspectResponse) int { return rank(a) - rank(b) })
	return found, nil
}

func filter(labels map[string]string, names ...string) client.Filters {
	f := client.Filters{}
	for _, name := range names {
		f.Add("label", name+"="+labels[name])
	}
	return f
}

// foreign names the container that has our name without being ours; empty where there is none.
func (c *connection) foreign(ctx context.Context, w wanted, ours []container.InspectResponse) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	have, err := c.ContainerInspect(ctx, w.name, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", failed("look at container "+w.name, err)
	}
	id := have.Container.ID
	if slices.ContainsFunc(ours, func(o container.InspectResponse) bool { return o.ID == id }) {
		return "", nil
	}
	image := ""
	if have.Container.Config != nil {
		image = have.Container.Config.Image
	}
	return fmt.Sprintf("container %s of image %s", short(id), appliance.Quote(image)), nil
}

// started is when the engine began: a container that ended before it was ended by the engine's end, or the machine's.
func (c *connection) started() time.Time { return startOf(c.socket) }
