"""Knowledge distillation (https://keras.io/examples/vision/knowledge_distillation/): made-up images of bars."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
num_classes, batch_size = 5, 20

# The class of an image is the row of its bar; there are other bars from top to bottom, which do not matter.
rng = np.random.default_rng(0)
labels = rng.integers(0, num_classes, 130)
images = rng.uniform(0, 0.4, (130, 10, 10, 1)).astype("float32")
for image, label in zip(images, labels, strict=True):
    image[2 * label : 2 * label + 2] += 0.4
    image[:, rng.integers(0, 10)] += 0.2
x_train, y_train, x_test, y_test = images[:90], labels[:90], images[90:], labels[90:]


class StudentOfTeacher(keras.Model):
    """Trains a student on the labels, and on what its teacher thinks of all classes."""

    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, label_loss, teacher_loss, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.label_loss = label_loss
        self.teacher_loss = teacher_loss
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.label_loss(y, y_pred)
        distillation_loss = self.teacher_loss(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)  # softer targets have smaller gradients, by this factor
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def make_classifier(filters, name):
    return keras.Sequential(
        [
            keras.Input(shape=(10, 10, 1)),
            layers.Conv2D(filters, (3, 3), strides=(2, 2), padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(pool_size=(2, 2), strides=(1, 1), padding="same"),
            layers.Conv2D(2 * filters, (3, 3), strides=(2, 2), padding="same"),
            layers.Flatten(),
            layers.Dense(num_classes),
        ],
        name=name,
    )


teacher = model = make_classifier(16, "teacher")
student = make_classifier(4, "student")

model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(x_train, y_train, batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
score = model.evaluate(x_test, y_test, verbose=0, return_dict=True)

teacher.trainable = False
model = StudentOfTeacher(student=student, teacher=teacher)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    label_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    teacher_loss=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=5,
)
history = model.fit(x_train, y_train, batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
score = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
