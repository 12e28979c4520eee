package engine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// stalled is how long a pull may bring nothing.
const stalled = 2 * time.Minute

// image gives what the engine holds of the container's image.
func (c *connection) image(ctx context.Context, w wanted) (client.ImageInspectResult, error) {
	return c.ImageInspect(ctx, w.spec.Image)
}

// pull sees that the image is there, by digest, and that it keeps no data where none would be kept for it.
func (e *Engine) pull(ctx context.Context, c *connection, w wanted) (client.ImageInspectResult, error) {
	look, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	image, err := c.image(look, w)
	if errdefs.IsNotFound(err) {
		if err := e.trust(w.spec.Store.Address); err != nil {
			return image, err
		}
		if err := e.own(w.spec.Image); err != nil {
			return image, err
		}
		if err := c.fetchKnown(ctx, w.spec); err != nil {
			return image, err
		}
		again, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		image, err = c.image(again, w)
	}
	if err != nil {
		return image, failed("look at image "+w.spec.Image, err)
	}
	return image, w.keepsData(image)
}

// own remembers that an image is on this machine because of the mesh.
func (e *Engine) own(image string) error {
	was, err := e.changed()
	if err != nil || slices.Contains(was.Images, image) {
		return err
	}
	was.Images = append(was.Images, image)
	return e.remember(was)
}

// Collect removes the images that were pulled for the mesh and have none of these digests (DEC-14). One that a container still uses stays
// for the next time.
func (e *Engine) Collect(ctx context.Context, keep []appliance.Digest) error {
	was, err := e.changed()
	if err != nil {
		return err
	}
	unneeded := func(image string) bool {
		_, digest, _ := strings.Cut(image, "@")
		return !slices.Contains(keep, appliance.Digest(digest))
	}
	if !slices.ContainsFunc(was.Images, unneeded) || e.gone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	was.Images = slices.DeleteFunc(was.Images, func(image string) bool {
		if !unneeded(image) {
			return false
		}
		_, e := c.ImageRemove(ctx, image, client.ImageRemoveOptions{})
		if e != nil && !errdefs.IsNotFound(e) {
			err = failed("remove image "+image, e)
			return false
		}
		return true
	})
	return errors.Join(err, e.remember(was))
}

// fetchKnown is fetch where the store's name may be news to the engine: it reads the hosts file every five seconds.
func (c *connection) fetchKnown(ctx context.Context, s wire.ContainerSpec) error {
	name, _, _ := strings.Cut(s.Store.Address, ":")
	for deadline := time.Now().Add(6 * time.Second); ; {
		err := c.fetch(ctx, s.Image)
		if err == nil || !strings.Contains(err.Error(), "lookup "+name) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// fetch pulls an image, for as long as something comes.
func (c *connection) fetch(ctx context.Context, image string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(stalled, func() {
		cancel(appliance.Errorf(appliance.Unavailable, "nothing came for %s", stalled))
	})
	defer late.Stop()
	what := "pull " + image
	pulled, err := c.ImagePull(ctx, image, client.ImagePullOptions{})
	if err == nil {
		defer pulled.Close()
		for message, e := range pulled.JSONMessages(ctx) {
			late.Reset(stalled)
			if err = e; err == nil && message.Error != nil {
				err = appliance.Errorf(appliance.Unavailable, "%s", message.Error.Message)
			}
			if err != nil {
				break
			}
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return failed(what, err)
}

// keepsData refuses an image that says it keeps data where nothing is mounted: the engine would put it into a place that goes with the
// container, and each change would lose it (MOD-10).
func (w wanted) keepsData(image client.ImageInspectResult) error {
	if image.Config == nil {
		return nil
	}
	for volume := range image.Config.Volumes {
		if at := path.Clean(volume); !slices.ContainsFunc(w.host.Mounts, func(m mount.Mount) bool { return m.Target == at }) {
			return appliance.Errorf(appliance.Invalid, "container %s: its image keeps data at %s, where nothing is mounted", w.id, appliance.Quote(at)).
				WithHint(fmt.Sprintf(`add {"source": "${dir}/…", "target": %q} to its mounts`, at))
		}
	}
	return nil
}
